import os
import signal
import threading
import time
import uuid
from pathlib import Path

import pytest

from tailrace.contracts import Score
from tailrace.faulttol import FaultKind
from tailrace.paramserver import Publisher, RelayReader
from tailrace.pipeline.roles.relay import RelayRole, RelaySettings
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.seam import MemberStart


@pytest.fixture
def make(token):
    roles = []

    def start(name=None):
        roles.append(RelayRole(RelaySettings(), MemberStart(name=name or f"roles-{uuid.uuid4().hex}", token=token)))
        return roles[-1]

    yield start
    for role in roles:
        role.close()


class Asking:
    """Somebody who asks for events, in a thread."""

    def __init__(self, role):
        self.answers, self.error = [], None
        self._thread = threading.Thread(target=self._run, args=(role,), daemon=True)
        self._thread.start()

    def _run(self, role):
        try:
            self.answers.append(role.events(0.2))
        except RoleError as error:
            self.error = error

    def ended(self, timeout_s):
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def segments(process):
    """The files of shared memory that a process has mapped. Other tests, at the same time, have theirs."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {Path(line.split()[-1]) for line in lines if "/dev/shm/tailrace-" in line}


def test_it_answers_while_its_process_does(make, token):
    role = make()
    address = role.ready().address
    with Publisher(address, token=token) as publisher, RelayReader(address, token=token) as reader:
        publisher.publish(0, [("w", b"1234")])
        publisher.wait(0, 20)
        assert reader.latest() == 0
    assert [(said.role, said.id, said.progress, said.phase) for said in role.events(0.2)] == [
        ("relay", "0", 1, "1 of at most 3 copies of weights, 0.0 MB")
    ]
    began = time.monotonic()
    assert role.events(0.2) == []
    assert 0.2 <= time.monotonic() - began < 5.0
    role.submit([])
    role.adopt()
    with pytest.raises(RoleError, match="got Score"):
        role.submit([Score(1, ())])


def test_a_suspended_process_does_not_answer(make):
    role = make()
    os.kill(role.process(), signal.SIGSTOP)
    asking = Asking(role)
    assert not asking.ended(4.0)
    os.kill(role.process(), signal.SIGCONT)
    assert asking.ended(30.0)
    assert asking.answers == [[]]


@pytest.mark.deep
def test_a_process_that_is_gone_breaks_it(make):
    role, suspended = make(), make()
    os.kill(suspended.process(), signal.SIGSTOP)
    asking = Asking(suspended)
    time.sleep(0.5)
    for each in (role, suspended):
        os.kill(each.process(), signal.SIGKILL)
        with pytest.raises(RoleError, match=f"process {each.process()} is gone"):
            each.events(5.0)
    assert asking.ended(30.0)
    assert "gone" in str(asking.error)


def test_scripted_faults_hit_its_own_process(make, until):
    hung, killed = make(), make()
    assert hung.strike(FaultKind.HANG)
    assert not Asking(hung).ended(1.0)
    assert killed.strike(FaultKind.KILL)
    with pytest.raises(RoleError, match="gone"):
        killed.events(5.0)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process maps is not listed here")
@pytest.mark.parametrize("how", [None, signal.SIGSTOP, signal.SIGKILL])
def test_it_leaves_nothing(make, token, how):
    role = make()
    with Publisher(role.ready().address, token=token) as publisher:
        publisher.publish(0, [("w", b"1234")])
        publisher.wait(0, 20)
    held = segments(role.process())
    assert held
    if how is not None:
        os.kill(role.process(), how)
    asking = Asking(role)
    if how is signal.SIGKILL:
        assert asking.ended(10.0)
        assert not [path for path in held if path.exists()]  # whether or not anybody closes it
    role.close()
    assert not [path for path in held if path.exists()]
    assert asking.ended(30.0)


def test_its_next_incarnation_ends_one_that_is_suspended(make, until):
    name = f"roles-{uuid.uuid4().hex}"
    old = make(name)
    os.kill(old.process(), signal.SIGSTOP)
    new = make(name)
    assert new.process() != old.process()
    assert new.events(0.1) == []
    with pytest.raises(RoleError, match="gone"):
        old.events(5.0)
