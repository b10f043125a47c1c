"""Whether a machine of a joined cluster is gone on which a member died, and which process is struck for one."""

import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tailrace.processes import ProcessId
from tailrace.runtime.executor.seam import MachineDeadError, MemberDeadError
from tailrace.runtime.hosts.ray_machines import ClusterMachines


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


def test_a_machine_that_is_seen_alone_has_no_other_ones_name():
    machines = ClusterMachines(lost=True)
    machines.look([row("a" * 10, 1, address="10.0.0.1")])
    machines.look([row("b" * 10, 1, address="10.0.0.1")])
    assert (machines.name("a" * 10), machines.name("b" * 10)) == ("10.0.0.1", "10.0.0.1/bbbbbbbb")


@pytest.mark.parametrize("late", [1, 2])
def test_who_does_not_answer_in_time_is_gone_only_after_the_second_try(monkeypatch, late):
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        machines, connect, tries = ClusterMachines(lost=True), socket.create_connection, []

        def slow(address, timeout):
            tries.append(address)
            if len(tries) <= late:
                raise TimeoutError
            return connect(address, timeout=timeout)

        monkeypatch.setattr(socket, "create_connection", slow)
        machines.look([row("a", raylet.getsockname()[1])])
        assert machines.gone("a") == (late == 2)
        assert len(tries) == 2


# ---- members on these machines, whose actor is played


class Reference(Future):
    """Ray's reference of a result."""

    def future(self):
        return self


class Played:
    """An actor: its answers are references here, in the order of the calls; that of `where` is the first."""

    def __init__(self):
        self.answers = []
        self.where = self.call = self

    def options(self, **_):
        return self

    def remote(self, *_):
        self.answers.append(Reference())
        return self.answers[-1]


def member_on(machines, own, process=None):
    pytest.importorskip("ray")
    from tailrace.runtime.hosts.ray import RayMember

    actor = Played()
    member = RayMember("r0", actor, None, 1, known=machines)
    actor.answers[0].set_result(("n" * 10, process or ProcessId.current(), (), own, False))
    return member, actor


def dies(actor):
    from ray.exceptions import RayActorError

    actor.answers[-1].set_exception(RayActorError())


def test_a_process_that_has_the_id_of_a_member_that_is_gone_is_not_struck(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n" * 10))
    killed = []
    monkeypatch.setattr(ray, "kill", lambda actor, **_: killed.append(actor))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        now = ProcessId.of(process.pid)
        member, actor = member_on(None, None, replace(now, started=now.started - 1))
        member.kill()
        assert process.poll() is None
        assert killed == [actor]
        member, actor = member_on(None, None, now)
        member.kill()
        assert process.wait(30) == -signal.SIGKILL
    assert len(killed) == 1


def test_a_machine_that_joined_after_the_host_looked_is_known_by_what_its_member_says():
    machines = ClusterMachines(lost=True)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        member, actor = member_on(machines, row("n" * 10, raylet.getsockname()[1], address="127.0.0.1"))
        assert member.machine == "127.0.0.1"
    answer = member.call("poll")
    dies(actor)
    with pytest.raises(MachineDeadError, match=r"127\.0\.0\.1 is gone"):
        answer.result(timeout=10)


def test_the_thread_that_answers_come_on_does_not_wait_for_a_machine():
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        member, actor = member_on(ClusterMachines(lost=True), row("n" * 10, raylet.getsockname()[1]))
        answer = member.call("poll")
        began_s = time.monotonic()
        dies(actor)
        assert time.monotonic() - began_s < 0.4
        assert type(answer.exception(timeout=10)) is MemberDeadError


def test_nobody_asks_for_the_machine_of_a_member_that_the_run_ended(monkeypatch):
    machines = ClusterMachines(lost=True)
    member, actor = member_on(machines, row("n" * 10, 1))  # nobody listens there
    import ray

    monkeypatch.setattr(ray, "get", lambda *_, **__: None)
    monkeypatch.setattr(ray, "kill", lambda *_, **__: dies(actor))
    poll = member.call("poll")
    monkeypatch.setattr(member, "_begin", lambda *_: None)
    member.close(1.0)
    assert type(poll.exception(timeout=10)) is MemberDeadError
