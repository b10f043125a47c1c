"""A child ends with its parent, however that ends: killed, standing still itself, at work, or from a thread that ended."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from tailrace.processes import Child, ProcessId, at_end_of

from .children import DEADLINE_S, gone, python, wait_until

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has PR_SET_PDEATHSIG")
# Starts the program that it is given, says its id once it is ready, and sleeps; stdin of the child is a pipe that it holds.
PARENT = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(600)
"""
ENDINGS = {
    "die_with_parent": "from tailrace.processes import die_with_parent\nimport sys, time\n"
    "assert die_with_parent(int(sys.argv[1]))\nprint(flush=True)\ntime.sleep(600)",
    "wait_for_parent": "from tailrace.processes import Ending, wait_for_parent\nimport sys\n"
    "print(flush=True)\nwait_for_parent(int(sys.argv[1]), Ending())",
    "at_end_of": "from tailrace.processes import at_end_of\nimport os, time\n"
    "at_end_of(0, lambda: os._exit(1))\nprint(flush=True)\ntime.sleep(600)",
    "serve": "from tailrace.processes import serve\nprint(flush=True)\nserve(lambda request: {})",
}


def orphan(program, parents_end):
    parent = Child(python(PARENT, program), **PIPES)
    try:
        child = parent.receive(DEADLINE_S)["child"]
        assert not gone(child)
        parents_end(parent, child)
        wait_until(lambda: gone(child), "the child of the killed parent ends")
    finally:
        parent.kill()


@LINUX
@pytest.mark.parametrize("how", ENDINGS)
def test_a_child_ends_with_its_killed_parent(how):
    orphan(ENDINGS[how], lambda parent, child: os.kill(parent.pid, signal.SIGKILL))


@LINUX
def test_the_kernel_kills_a_child_that_stands_still():
    def end(parent, child):
        os.kill(child, signal.SIGSTOP)
        os.kill(parent.pid, signal.SIGKILL)

    orphan(ENDINGS["die_with_parent"], end)


def test_a_server_at_work_ends_with_its_killed_parent():
    program = (
        "import time\nfrom tailrace.processes import serve\nimport os\n"
        "def answer(request):\n    os.write(2, b'at work')\n    time.sleep(600)\n"
        "print(flush=True)\nserve(answer)"
    )
    ask = "child.stdin.write(b'{}\\n'); child.stdin.flush()"
    parent = PARENT.replace("child.stdout.readline()", f"child.stdout.readline(); {ask}")
    owner = Child(python(parent, program), **PIPES)
    child = owner.receive(DEADLINE_S)["child"]
    owner.kill()
    wait_until(lambda: gone(child), "the child at work ends")


def test_a_server_ends_although_a_fork_of_its_parent_holds_the_pipe():
    parent = PARENT.replace("print(json", "fork = os.fork()\nif not fork:\n    time.sleep(600)\nprint(json").replace(
        '"child": child.pid', '"child": child.pid, "fork": fork'
    )
    ask = "child.stdin.write(b'{}\\n'); child.stdin.flush(); child.stdout.readline()"  # until it serves
    parent = parent.replace("child.stdout.readline()", f"child.stdout.readline(); {ask}")
    owner = Child(python(parent, ENDINGS["serve"]), **PIPES)
    said = owner.receive(DEADLINE_S)
    try:
        owner.kill()
        assert not gone(said["fork"])
        wait_until(lambda: gone(said["child"]), "the server ends")
    finally:
        os.kill(said["fork"], signal.SIGKILL)


@LINUX
def test_a_child_whose_parent_is_gone_already_exits():
    program = "from tailrace.processes import die_with_parent\ndie_with_parent(1)\nprint('lives')"
    found = subprocess.run(python(program), capture_output=True, timeout=DEADLINE_S)
    assert (found.returncode, found.stdout) == (-signal.SIGKILL, b"")


@LINUX
def test_the_end_of_the_thread_that_started_it_is_not_the_parents():
    children = []
    program = """
import signal, sys, threading, time
from tailrace.processes import Ending, wait_for_parent
def ready():
    while signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        time.sleep(0.01)
    print(flush=True)
threading.Thread(target=ready, daemon=True).start()
wait_for_parent(int(sys.argv[1]), Ending())
"""
    starter = threading.Thread(
        target=lambda: children.append(
            Child([*python(program), str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        )
    )
    starter.start()
    starter.join()
    child = children[0]
    try:
        child.line(DEADLINE_S)
        os.kill(child.pid, signal.SIGHUP)  # as the kernel does when that thread ends later than here
        assert child.wait(2.5) is None
    finally:
        child.kill()


def test_a_stop_ends_the_wait():
    program = (
        "import os, signal\nfrom tailrace.processes import Ending, wait_for_parent\nstop = Ending()\n"
        "signal.signal(signal.SIGTERM, stop.ask)\nprint(flush=True)\n"
        "wait_for_parent(os.getppid(), stop)\nraise SystemExit(4)"
    )
    child = Child(python(program), stdout=subprocess.PIPE)
    child.line(DEADLINE_S)
    assert child.end(DEADLINE_S) == 4


@pytest.mark.parametrize("within", ["poll", "write"])
def test_a_stop_ends_the_wait_whenever_it_comes(within):
    """A signal's handler comes between any two instructions of the main thread, those of a wait or a handler included."""
    wait = (
        "poll = select.poll\ndef asked():\n    os.kill(os.getpid(), signal.SIGTERM)\n    return poll()\n"
        "select.poll = asked\n"
    )
    ask = (
        "write, sent = os.write, []\ndef twice(*given):\n    if not sent:\n        sent.append(1)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n    return write(*given)\nos.write = twice\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
    )
    program = (
        "import os, select, signal, threading\nfrom tailrace.processes import Ending, wait_for_parent\nstop = Ending()\n"
        f"signal.signal(signal.SIGTERM, stop.ask)\n{wait if within == 'poll' else ask}"
        "wait_for_parent(os.getppid(), stop)\nraise SystemExit(4)"
    )
    child = Child(python(program), stdout=subprocess.PIPE)
    try:
        assert child.wait(DEADLINE_S) == 4
    finally:
        child.kill()


def test_a_process_is_not_mistaken_for_another():
    child = Child(python("import time; time.sleep(600)"))
    found = ProcessId.of(child.pid)
    later = ProcessId(found.pid, (found.started or 0) + 1, found.namespace)
    assert found.alive()
    assert not later.alive()
    assert not later.kill()
    assert child.poll() is None
    assert found.kill()
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert not found.alive()
    assert not found.kill()


def test_a_zombie_does_not_live():
    child = Child(python("pass"))
    found = ProcessId.of(child.pid)
    wait_until(lambda: gone(child.pid), "it ends")
    assert not found.alive()
    child.kill()


def test_this_process_does_not_kill_itself():
    assert ProcessId.current().alive()
    assert not ProcessId.current().kill()


def test_a_pipe_that_cannot_be_read_has_ended():
    read, write = os.pipe()
    os.close(read)
    ended = threading.Event()
    at_end_of(read, ended.set)
    assert ended.wait(DEADLINE_S)
    os.close(write)
